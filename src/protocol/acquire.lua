-- Acquires the lock and draws its fencing token, in one step.
-- KEYS[1] lock, KEYS[2] fence
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] number of tokens to reserve (default 1)
-- Granted, by take_free.lua, which runs before this: the first token, as text.
-- Refused: {0, value of the lock key, its ttl in ms or -1, ms since the last token was drawn}. The
-- last number is negative if that is not known.
-- Errors: BADFENCE if the fence holds no integer that, with the reserved tokens, is below 2^53.
-- After any error the lock is not held.
local holder = redis.call('GET', KEYS[1])
local fence = redis.pcall('GET', KEYS[2])
local time = redis.call('TIME')
local last = type(fence) == 'string' and tonumber(fence)
local age = last and math.floor((time[1] * 1000000 + time[2] - last) / 1000) or -1
-- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
return {0, holder and string.sub(holder, 1, 1088), redis.call('PTTL', KEYS[1]), age}
