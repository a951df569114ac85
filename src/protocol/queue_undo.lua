-- Releases what each of several holder ids holds, or removes its place from the queue; then grants
-- to the waiters who fit.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places, KEYS[5] readers of a lock
-- ARGV[1] wake channel, ARGV[2..] holder ids
-- Replies with a list: the value of a holder that is none of the ids, or 0; then the index, from 1,
-- of each id that held or had a place.
settle()
local reply = {0}
-- All ids first: the grants below must not go to one of them.
for n = 2, #ARGV do
  local id = ARGV[n]
  if take_out(id) then
    out = id
    reply[#reply + 1] = n - 1
  else
    -- Always a write: a server that has become a replica then replies READONLY, not "not yours".
    local removed = redis.pcall('HDEL', KEYS[4], id)
    if removed == 1 then
      redis.pcall('LREM', KEYS[3], '1', id)
      reply[#reply + 1] = n - 1
    elseif removed ~= 0 and not string.find(removed.err, 'WRONGTYPE', 1, true) then
      return removed
    end
  end
end
-- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
if holder then reply[1] = string.sub(holder, 1, 1088) end
-- A damaged queue must not keep the lock from being released.
pcall(grant)
-- The first waiter sleeps until the end in its last reply.
if ends_earlier and holder then pcall(prompt, '0') end
if out then left(ARGV[1], out) end
return reply
