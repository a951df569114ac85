-- Makes a writer a reader, and grants to the readers at the head of the queue.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places, KEYS[5] readers
-- ARGV[1] holder id, ARGV[2] ttl in ms
-- The caller is a reader now, even if it was one before: 1. Otherwise 0 if the lock is free, or the
-- value of the other holder.
settle()
local reply = keep(ARGV[1], ARGV[2])
if type(reply) == 'table' then return reply end
-- A damaged queue must not keep the writer from its downgrade.
pcall(grant)
return reply
