-- Takes the lock where it is free and nobody waits; otherwise goes behind those who do.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] 1 to wait and 0 not to, ARGV[4] the client's inbox
-- Granted: {1, token}. Refused, and queued if it is to wait: {0, the holder's value, its ttl in ms or -1}.
-- Errors: BADFENCE where the fence holds no integer below 2^53. On any error nothing is held.
local token, bad = draw()
if bad then return bad end
local living = waited_for()
-- Also where somebody waits: a server that has become a replica must answer READONLY, not "refused".
local free = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if free then
  if not living then
    local kept = redis.pcall('SET', KEYS[2], token, 'EX', 86400)
    if kept.err then
      redis.call('DEL', KEYS[1])
      return kept
    end
    return {1, token}
  end
  redis.call('DEL', KEYS[1])
end
if ARGV[3] == '1' then
  if redis.call('RPUSH', KEYS[3], ARGV[1]) == 1 then
    -- Places of a queue that somebody has deleted would wait for ever.
    redis.call('DEL', KEYS[4])
  end
  local provisional = math.min(3000, tonumber(ARGV[2]))
  redis.call('HSET', KEYS[4], ARGV[1], now .. ' ' .. provisional .. ' ' .. (ARGV[4] or ''))
  keep()
end
if free then
  local _, failed = grant()
  if type(failed) == 'table' then return failed end
end
local holder = redis.call('GET', KEYS[1])
-- Others may have written megabytes. No holder id of ours is longer than this.
return {0, holder and string.sub(holder, 1, 1088), redis.call('PTTL', KEYS[1])}
