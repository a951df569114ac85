-- Sets the ttl of many readers' leases, as renew_shared.lua does for one.
-- KEYS each lock, followed by its readers
-- ARGV[1] ttl in ms, which never shortens a lease; ARGV[2..] the holder ids, in the order of the
-- locks
-- A list of one number for each lease: 1 renewed, 0 the lock is free, 2 held by another.
-- An error is about none of them: some may be renewed.
local reply = {}
for n = 1, #all / 2 do
  turn_to(n)
  settle()
  local kept = keep(ARGV[n + 1], ARGV[1], false)
  if type(kept) == 'table' then return kept end
  reply[n] = type(kept) == 'string' and 2 or kept
end
return reply
