-- Returns the last fencing token of a name, whether its lock is held or free.
-- KEYS[1] fence
-- The fence's text, of a longer one the first 17 bytes; nil if there is none.
local fence = redis.call('GET', KEYS[1])
-- A foreign value can be megabytes long. A token has at most 16 digits: with a seventeenth it is
-- none.
return fence and string.sub(fence, 1, 17)
