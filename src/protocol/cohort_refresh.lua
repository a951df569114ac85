-- Sets what the places of the waiters of a client want from now on. Runs before queue_refresh.lua,
-- and removes its own argument, the first, from ARGV.
-- ARGV[1] what they want, ARGV[2] the client's inbox, ARGV[3..] holder ids
want = table.remove(ARGV, 1)

