-- Takes the lock on one server of a quorum, under a fencing token that the client proposes.
-- KEYS[1] lock, KEYS[2] fence; ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] proposed token,
-- ARGV[4] the last of the tokens that it reserves, unless that is the same
-- Granted: {1, token}. Refused: {0, the holder's value, its ttl in ms or -1}. Too low: {2, the counter}.
-- Errors: BADFENCE where the fence holds no integer below 2^53. On any error nothing is held.
local fence = redis.pcall('GET', KEYS[2])
if type(fence) == 'table' then
  if string.find(fence.err, 'WRONGTYPE', 1, true) then
    return redis.error_reply('BADFENCE the fence is no string')
  end
  return fence
end
local token = tonumber(ARGV[3])
local last = fence and tonumber(fence) or -1
local reserved = ARGV[4] or ARGV[3]
-- 2^53: from there on a Lua number skips integers, and two holders could share a token.
if fence and (not string.find(fence, '^%d+$') or last >= 9007199254740991)
  or tonumber(reserved) > 9007199254740991 then
  return redis.error_reply('BADFENCE the fence is no integer below 2^53')
end
local holder = redis.call('GET', KEYS[1])
-- Others may have written megabytes. No holder id of ours is longer than this.
if holder then return {0, string.sub(holder, 1, 1088), redis.call('PTTL', KEYS[1])} end
if token <= last then return {2, last} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
-- The text as it came: what Lua makes of a large number may have an exponent.
local kept = redis.pcall('SET', KEYS[2], reserved, 'EX', 86400)
if kept.err then
  redis.call('DEL', KEYS[1])
  return kept
end
return {1, token}
