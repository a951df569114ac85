-- Gives the lock its ttl anew, if it is still the caller's.
-- KEYS[1] lock; ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] 1 if it may shorten
-- Renewed: 1. Not the caller's: 0 where nobody holds it, the other holder's value where somebody does.
-- One key: a cluster that moves a slot refuses calls with two keys of which one is not there.
local holder = redis.call('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
local ours = holder == ARGV[1]
if ours and (ARGV[3] == '1' or (left >= 0 and left < tonumber(ARGV[2]))) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
-- A server that has become a replica must answer READONLY here, not "not yours" and not "renewed": so
-- a write that changes nothing. Zero would delete.
if left >= 0 then
  redis.call('PEXPIRE', KEYS[1], math.max(left, 1))
elseif holder then
  redis.call('SET', KEYS[1], holder)
else
  redis.call('DEL', KEYS[1])
end
if ours then return 1 end
return holder or 0
