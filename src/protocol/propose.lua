-- Acquires the lock on one server of a quorum, under a fencing token that the client proposes.
-- KEYS[1] lock, KEYS[2] fence
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] proposed token
-- ARGV[4] last token to reserve (default ARGV[3]); 0 if other servers keep the lease: then it gets
--   a free key here whatever the fence says, and the larger of fence and token stays
-- Granted: {1, token}. Refused: {0, value of the lock key, its ttl in ms or -1}.
-- Too low: {2, the fence's token}.
-- Errors: BADFENCE if the fence holds no integer below 2^53 - 1, or ARGV[4] is not below 2^53.
-- After any error the lock is not held.
local last, bad = last_token(KEYS[2], '', 0)
if bad then return bad end
local token = tonumber(ARGV[3])
local joins = ARGV[4] == '0'
local reserved = not joins and ARGV[4] or ARGV[3]
if tonumber(reserved) > 9007199254740991 then
  return redis.error_reply('BADFENCE the fence is no integer below 2^53')
end
local holder = redis.call('GET', KEYS[1])
if holder then
  local left = redis.call('PTTL', KEYS[1])
  -- A write that fails, since the key exists: a server that has become a replica then replies
  -- READONLY, not "refused".
  if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then redis.call('DEL', KEYS[1]) end
  -- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
  return {0, string.sub(holder, 1, 1088), left}
end
if last and token <= last then
  if not joins then return {2, last} end
  reserved = nil
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
-- The token says nothing about the server's clock.
bad = reserved and store(KEYS[2], reserved)
if bad then
  redis.call('DEL', KEYS[1])
  return bad
end
return {1, token}
