-- Sets the ttl of a reader's lease. If the caller is still the writer, its downgrade got no reply
-- and has not run: the caller becomes a reader. Unlike the downgrade, this grants to nobody: the
-- readers behind it get the lock by their next refresh, within a second.
-- KEYS[1] lock, KEYS[2] readers
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] 1 if this may shorten the ttl
-- Renewed: 1. Otherwise 0 if the lock is free, or the other holder's value.
-- The keys of the queue are left out, because they may not exist: a cluster that migrates a slot
-- rejects calls with several keys if one of them is elsewhere or does not exist.
KEYS[5] = KEYS[2]
settle()
return keep(ARGV[1], ARGV[2], ARGV[3] == '1')
