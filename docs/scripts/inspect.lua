-- Reads the holder of the lock.
-- KEYS[1] lock, KEYS[2] fence
-- Held: {value, ttl in ms or -1, last fencing token or nil}. Free: nil.
-- A value longer than 1088 bytes is replaced by its first 1088 bytes and the SHA-1 of the whole, in
-- 40 hex digits: different values still give different replies.
local holder = redis.call('GET', KEYS[1])
if not holder then return false end
-- A foreign value can be megabytes long. No holder id is longer than this.
if #holder > 1088 then holder = string.sub(holder, 1, 1088) .. redis.sha1hex(holder) end
-- A token has at most 16 digits: 17 bytes are enough for the client to reject a longer text.
local fence = redis.pcall('GET', KEYS[2])
return {holder, redis.call('PTTL', KEYS[1]), type(fence) == 'string' and string.sub(fence, 1, 17)}
