-- Returns the last fencing token of a name, whether its lock is held or free.
-- KEYS[1] fence
-- Replies with the fence's text, cut to 17 bytes; nil if there is no fence.
local fence = redis.call('GET', KEYS[1])
-- A foreign value can be megabytes long. A token has at most 16 digits: 17 bytes are enough for the
-- client to reject a longer text.
return fence and string.sub(fence, 1, 17)
