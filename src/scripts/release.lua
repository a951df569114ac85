-- Lets go of the lock, if it is still the caller's, and tells the waiters.
-- KEYS[1] lock, KEYS[2] a key that never exists; ARGV[1] holder id, ARGV[2] wake channel
-- Released: 1. Not the caller's: 0 where nobody holds it, the other holder's value where somebody does.
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  redis.call('DEL', KEYS[1])
  -- A user without the right to publish still releases.
  redis.pcall('PUBLISH', ARGV[2], ARGV[1])
  return 1
end
-- A server that has become a replica must answer READONLY here, not "not yours".
redis.call('DEL', KEYS[2])
return holder or 0
