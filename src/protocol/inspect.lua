-- Reads the holder of the lock.
-- KEYS[1] lock, KEYS[2] fence
-- Held: {value, ttl in ms or -1, last fencing token or nil}. Free: nil.
-- Of a value longer than 1088 bytes: the first 1088, and then the SHA-1 of the whole in 40 hex
-- digits. So two values give the same reply only if they are the same.
local holder = redis.call('GET', KEYS[1])
if not holder then return false end
-- A foreign value can be megabytes long. No holder id is longer than this.
if #holder > 1088 then holder = string.sub(holder, 1, 1088) .. redis.sha1hex(holder) end
-- A token has at most 16 digits: with a seventeenth it is none.
local fence = redis.pcall('GET', KEYS[2])
return {holder, redis.call('PTTL', KEYS[1]), type(fence) == 'string' and string.sub(fence, 1, 17)}
