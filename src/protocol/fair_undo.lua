-- Lets go of the lock, or of a place in the queue, for each of several holder ids, and passes the lock on.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places; ARGV[1] wake channel, then the holder ids
-- A list: the value of a holder that is none of the ids, 0 where there is none; then, counted from 1, each id that held
-- the lock or had a place until now.
local holder = redis.call('GET', KEYS[1])
local reply = {holder or 0}
local is_ours = false
-- The places first: none of them is granted what is passed on below.
for n = 2, #ARGV do
  local was_there = ARGV[n] == holder
  if was_there then
    is_ours = true
    reply[1] = 0
  -- A write in any case: a server that has become a replica must answer READONLY here, not "not yours".
  elseif redis.call('HDEL', KEYS[4], ARGV[n]) == 1 then
    redis.call('LREM', KEYS[3], 1, ARGV[n])
    was_there = true
  end
  if was_there then reply[#reply + 1] = n - 1 end
end
if is_ours then
  -- Whatever is wrong with the queue, what is released is released.
  local ran, next = pcall(grant)
  if not ran or not next then
    redis.call('DEL', KEYS[1])
    -- A user without the right to publish still releases.
    redis.pcall('PUBLISH', ARGV[1], holder)
  end
end
return reply
