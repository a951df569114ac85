-- Reads the holder of the lock.
-- KEYS[1] lock, KEYS[2] fence
-- Held: {value, ttl in ms or -1, last fencing token or nil}. Free: nil.
local holder = redis.call('GET', KEYS[1])
if not holder then return false end
local fence = redis.pcall('GET', KEYS[2])
return {holder, redis.call('PTTL', KEYS[1]), type(fence) == 'string' and fence}
