-- Lets go of the lock, if it is still the caller's, and tells the waiters.
-- KEYS[1] lock; ARGV[1] holder id, ARGV[2] wake channel, ARGV[3] 1 to be told how many hear of it
-- Released: 1, or {1, so many}. Not the caller's: 0 where nobody holds it, the other holder's value where somebody does.
-- One key: a cluster that moves a slot refuses calls with two keys of which one is not there.
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  redis.call('DEL', KEYS[1])
  -- A user without the right to publish still releases.
  local heard = redis.pcall('PUBLISH', ARGV[2], ARGV[1])
  if ARGV[3] then return {1, tonumber(heard) or 0} end
  return 1
end
-- A server that has become a replica must answer READONLY here, not "not yours": so a write that
-- changes nothing. Zero would delete.
local left = redis.call('PTTL', KEYS[1])
if left >= 0 then
  redis.call('PEXPIRE', KEYS[1], math.max(left, 1))
elseif holder then
  redis.call('SET', KEYS[1], holder)
else
  redis.call('DEL', KEYS[1])
end
return holder or 0
