-- Acquires the lock and draws its fencing token, in one step.
-- KEYS[1] lock, KEYS[2] fence
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] number of tokens to reserve (default 1)
-- Granted: {1, first token}. Refused: {0, value of the lock key, its ttl in ms or -1}.
-- Errors: BADFENCE if the fence holds no integer below 2^53. After any error the lock is not held.
local fence = redis.pcall('GET', KEYS[2])
if type(fence) == 'table' then
  if string.find(fence.err, 'WRONGTYPE', 1, true) then
    return redis.error_reply('BADFENCE the fence is no string')
  end
  return fence
end
local time = redis.call('TIME')
local token = time[1] * 1000000 + time[2]
local more = (ARGV[3] or 1) - 1
if fence then
  local last = tonumber(fence)
  -- From 2^53 on, a Lua number skips integers, and two holders could share a token.
  if not string.find(fence, '^%d+$') or last + more >= 9007199254740991 then
    return redis.error_reply('BADFENCE the fence is no integer below 2^53')
  end
  if last >= token then token = last + 1 end
end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local kept = redis.pcall('SET', KEYS[2], token + more, 'EX', 86400)
  if kept.err then
    redis.call('DEL', KEYS[1])
    return kept
  end
  return {1, token}
end
local holder = redis.call('GET', KEYS[1])
-- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
return {0, holder and string.sub(holder, 1, 1088), redis.call('PTTL', KEYS[1])}
