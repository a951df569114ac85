-- Acquires the lock and draws its fencing token, in one step.
-- KEYS[1] lock, KEYS[2] fence
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] number of tokens to reserve (default 1)
-- Granted: {1, first token}.
-- Refused: {0, value of the lock key, its ttl in ms or -1, ms since the last token was drawn}. The
-- last number is negative if that is not known.
-- Errors: BADFENCE if the fence holds no integer that, with the reserved tokens, is below 2^53.
-- After any error the lock is not held.
local more = (ARGV[3] or 1) - 1
local last, bad = last_token(KEYS[2], '', more)
if bad then return bad end
local time = redis.call('TIME')
local token = math.max(time[1] * 1000000 + time[2], (last or 0) + 1)
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  -- As text: Redis 7.2.0 to 7.2.4 write a number that is a multiple of 10^8 with an exponent.
  local kept = redis.pcall('SET', KEYS[2], string.format('%.0f', token + more), 'EX', 86400)
  if kept.err then
    redis.call('DEL', KEYS[1])
    return kept
  end
  return {1, token}
end
local holder = redis.call('GET', KEYS[1])
-- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
local age = last and math.floor((time[1] * 1000000 + time[2] - last) / 1000) or -1
return {0, holder and string.sub(holder, 1, 1088), redis.call('PTTL', KEYS[1]), age}
