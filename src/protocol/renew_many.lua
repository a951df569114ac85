-- Sets the ttl of many locks: of each that its caller holds.
-- KEYS the locks
-- ARGV[1] ttl in ms, which never shortens that of a lock; ARGV[2..] the holder ids, in the same
-- order
-- A list of one number for each lock: 1 renewed, 0 free, 2 held by another.
-- An error is about none of them: some may be renewed.
local reply, written = {}, false
for n, lock in ipairs(KEYS) do
  local holder = redis.call('GET', lock)
  local left = redis.call('PTTL', lock)
  local ours = holder == ARGV[n + 1]
  if ours and left >= 0 and left < tonumber(ARGV[1]) then
    redis.call('PEXPIRE', lock, ARGV[1])
    written = true
  end
  reply[n] = ours and 1 or holder and 2 or 0
end
if not written then rewrite(KEYS[1]) end
return reply
