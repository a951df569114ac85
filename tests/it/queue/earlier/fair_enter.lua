-- Acquires the lock if it is free and no client waits; otherwise joins the end of the queue.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] 1 to join the queue or 0 not to, ARGV[4] inbox
-- Granted: {1, token}. Refused, and queued if ARGV[3] is 1: {0, value of the lock key, its ttl in
-- ms or -1}.
-- Errors: BADFENCE if the fence holds no integer below 2^53. After any error the lock is not held.
local token, bad = draw()
if bad then return bad end
local living = waited_for()
-- A write even if a client waits: a server that has become a replica then replies READONLY, not
-- "refused".
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
    -- The queue was empty, or someone deleted it: places without a queue would never be granted.
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
-- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
return {0, holder and string.sub(holder, 1, 1088), redis.call('PTTL', KEYS[1])}
