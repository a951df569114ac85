-- Gives several locks their ttl anew, if all of them are still the caller's.
-- KEYS: the locks; ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] 1 if it may shorten
-- Renewed, all of them: 1. Otherwise none is, and what is to be said of the first that is not the caller's:
-- 0 where nobody holds it, the other holder's value where somebody does.
local suspect, other = 1, nil
for n = 1, #KEYS do
  local holder = redis.call('GET', KEYS[n])
  if holder ~= ARGV[1] then
    suspect, other = n, holder or 0
    break
  end
end
local written = false
if other == nil then
  for n = 1, #KEYS do
    local left = redis.call('PTTL', KEYS[n])
    if ARGV[3] == '1' or (left >= 0 and left < tonumber(ARGV[2])) then
      redis.call('PEXPIRE', KEYS[n], ARGV[2])
      written = true
    end
  end
end
if written then return 1 end
-- A server that has become a replica must answer READONLY here, not "not yours" and not "renewed": so
-- a write that changes nothing. Zero would delete.
local left = redis.call('PTTL', KEYS[suspect])
local holder = redis.call('GET', KEYS[suspect])
if left >= 0 then
  redis.call('PEXPIRE', KEYS[suspect], math.max(left, 1))
elseif holder then
  redis.call('SET', KEYS[suspect], holder)
else
  redis.call('DEL', KEYS[suspect])
end
return other or 1
