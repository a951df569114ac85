-- Acquires the lock and draws its fencing token, in one step.
-- KEYS[1] lock, KEYS[2] fence
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] number of tokens to reserve (default 1)
-- Granted: {1, first token}.
-- Refused: {0, value of the lock key, its ttl in ms or -1, ms since the last token was drawn}. The
-- last number is negative if that is not known.
-- Errors: BADFENCE if the fence holds no integer that, with the reserved tokens, is below 2^53.
-- After any error the lock is not held.
local fence = redis.pcall('GET', KEYS[2])
local time = redis.call('TIME')
local more = (ARGV[3] or 1) - 1
local micros = time[2] + more
-- The last token of the block. As text: Redis 7.2.0 to 7.2.4 write a number that is a multiple of
-- 10^8 with an exponent. '%.0f' takes twice as long.
local text = string.format('%s%06d', time[1], micros)
local now = time[1] * 1000000 + micros - more
local token = now
-- Usually, the fence is a token of the same length that is lower, also than the first of the block.
if micros > 999999
  or fence and not (#fence == #text and fence < text and string.find(fence, '^%d+$')
    and (more == 0 or tonumber(fence) < now))
then
  local last, bad = last_token(KEYS[2], '', more)
  if bad then return bad end
  token = math.max(now, (last or 0) + 1)
  text = string.format('%.0f', token + more)
end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local kept = redis.pcall('SET', KEYS[2], text, 'EX', '86400')
  if kept.err then
    redis.call('DEL', KEYS[1])
    return kept
  end
  return {1, token}
end
local holder = redis.call('GET', KEYS[1])
local age = fence and math.floor((now - fence) / 1000) or -1
-- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
return {0, holder and string.sub(holder, 1, 1088), redis.call('PTTL', KEYS[1]), age}
