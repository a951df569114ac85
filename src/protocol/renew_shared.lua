-- Sets the ttl of a reader's lease. A writer becomes a reader, without a grant to others: its
-- downgrade got no reply, and the readers behind it refresh within a second.
-- KEYS[1] lock, KEYS[2] readers
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] 1 if this may shorten the ttl
-- Renewed: 1. Otherwise 0 if the lock is free, or the other holder's value.
-- Only keys that exist while the lease does: a cluster that migrates a slot rejects calls with
-- several keys if one of them is elsewhere or does not exist.
settle()
return keep(ARGV[1], ARGV[2], ARGV[3] == '1')
