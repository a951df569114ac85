-- Gives the lock its ttl anew, if it is still the caller's.
-- KEYS[1] lock, KEYS[2] a key that never exists; ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] 1 if it may shorten
-- Renewed: 1. Not the caller's: 0 where nobody holds it, the other holder's value where somebody does.
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  local left = redis.call('PTTL', KEYS[1])
  if ARGV[3] == '1' or (left >= 0 and left < tonumber(ARGV[2])) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return 1
  end
end
-- A server that has become a replica must answer READONLY here, not "not yours" and not "renewed".
redis.call('DEL', KEYS[2])
if holder == ARGV[1] then return 1 end
return holder or 0
