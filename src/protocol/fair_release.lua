-- Lets go of the lock or of a place in the queue, if it is still the caller's, and passes the lock on.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places; ARGV[1] holder id, ARGV[2] wake channel
-- Released, or left: 1. Neither: 0 where nobody holds it, the other holder's value where somebody does.
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  -- Whatever is wrong with the queue, what is released is released.
  local ran, next = pcall(grant)
  if not ran or not next then
    redis.call('DEL', KEYS[1])
    -- A user without the right to publish still releases.
    redis.pcall('PUBLISH', ARGV[2], ARGV[1])
  end
  return 1
end
-- A write in any case: a server that has become a replica must answer READONLY here, not "not yours".
if redis.call('HDEL', KEYS[4], ARGV[1]) == 1 then
  redis.call('LREM', KEYS[3], 1, ARGV[1])
  return 1
end
return holder or 0
