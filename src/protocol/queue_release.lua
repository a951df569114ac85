-- Releases what the caller holds, or removes its place from the queue; then grants to the waiters
-- who fit. For a lock, leave_free.lua runs before this, and sets `out` if it has ended the hold.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places, KEYS[5] readers of a lock
-- ARGV[1] holder id, ARGV[2] wake channel
-- Released, or removed from the queue: 1. Otherwise 0 for permits or if the lock is free, else the
-- value of the lock key.
settle()
out = out or take_out(ARGV[1])
local reply = 1
if not out then
  -- Always a write: a server that has become a replica then replies READONLY, not "not yours".
  if redis.call('HDEL', KEYS[4], ARGV[1]) == 1 then
    redis.call('LREM', KEYS[3], '1', ARGV[1])
  else
    -- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
    reply = holder and string.sub(holder, 1, 1088) or 0
  end
end
-- A damaged queue must not keep the lock from being released.
pcall(grant)
-- The first waiter sleeps until the end in its last reply.
if ends_earlier and holder then pcall(prompt, '0') end
if out then left(ARGV[2], ARGV[1]) end
return reply
