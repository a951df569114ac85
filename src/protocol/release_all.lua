-- Lets go of those of several locks that are still the caller's, and tells the waiters of each.
-- KEYS: the locks; ARGV[1] holder id, then the wake channels in the same order
-- Released, all of them: 1. Otherwise what is to be said of the first that was not the caller's: 0 where nobody
-- holds it, the other holder's value where somebody does.
local mine, other = 0, nil
for n = 1, #KEYS do
  local holder = redis.call('GET', KEYS[n])
  if holder == ARGV[1] then
    redis.call('DEL', KEYS[n])
    -- A user without the right to publish still releases.
    redis.pcall('PUBLISH', ARGV[n + 1], ARGV[1])
    mine = mine + 1
  elseif other == nil then
    other = holder or 0
  end
end
if mine == #KEYS then return 1 end
if mine == 0 then
  -- A server that has become a replica must answer READONLY here, not "not yours": so a write that
  -- changes nothing. Zero would delete.
  local left = redis.call('PTTL', KEYS[1])
  local holder = redis.call('GET', KEYS[1])
  if left >= 0 then
    redis.call('PEXPIRE', KEYS[1], math.max(left, 1))
  elseif holder then
    redis.call('SET', KEYS[1], holder)
  else
    redis.call('DEL', KEYS[1])
  end
end
return other
