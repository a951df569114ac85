-- Releases the lock or removes the place of each of several holder ids, and passes the lock on.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places
-- ARGV[1] wake channel, ARGV[2..] holder ids
-- Replies with a list: the value of a holder that is none of the ids, or 0; then the index, from 1,
-- of each id that held the lock or had a place.
local holder = redis.call('GET', KEYS[1])
-- A foreign value can be megabytes long. No holder id is longer than this.
local reply = {holder and string.sub(holder, 1, 1088) or 0}
local is_ours = false
-- Places first: the grant below must not go to one of these ids.
for n = 2, #ARGV do
  local was_there = ARGV[n] == holder
  if was_there then
    is_ours = true
    reply[1] = 0
  -- Always a write: a server that has become a replica then replies READONLY, not "not yours".
  elseif redis.call('HDEL', KEYS[4], ARGV[n]) == 1 then
    redis.call('LREM', KEYS[3], 1, ARGV[n])
    was_there = true
  end
  if was_there then reply[#reply + 1] = n - 1 end
end
if is_ours then
  -- A damaged queue must not keep the lock from being released.
  local ran, next = pcall(grant)
  if not ran or not next then
    redis.call('DEL', KEYS[1])
    -- A user without the PUBLISH permission can still release.
    redis.pcall('PUBLISH', ARGV[1], holder)
  end
end
return reply
