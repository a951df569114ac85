-- Acquires what the caller wants if it fits and no client waits; otherwise joins the end of the
-- queue.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places, KEYS[5] readers of a lock
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] what it wants
-- ARGV[4] the mark and the inbox of its place, with a space between them; 0 not to join the queue.
-- In one argument: Redis takes as long for a fifth as for the first three.
-- Granted: the first token, as text.
-- Refused, and queued unless ARGV[4] is 0: {0, value of the lock key, ms until the lock expires or
-- the first permits end, ms for which a holder of one has held the lock or number of permits out}.
-- The value is nil for permits and for a free lock. The ms until then are -1 without an expiry, and
-- -2 if nobody holds. The last number is negative if it is not known.
-- The value is the id of the caller, and the call is not queued, in two cases:
--   The network has run the call twice, and the first run was granted.
--   The grant below passed over all places before the one of the caller, and made the caller the
--   holder of a lock of one holder.
-- Errors: BADFENCE if `draw` of the admission fails with it. After any error the caller holds
-- nothing that this run has granted. It can have a place, if a grant to another waiter has failed;
-- grants before that stand.
read_clock()
local token, bad = draw(ARGV[3])
if bad then return bad end
settle()
if fits(ARGV[3]) then
  -- The first living place; the dead ones before it are removed.
  local first = redis.call('LINDEX', KEYS[3], '0')
  while first do
    local place = redis.call('HGET', KEYS[4], first)
    local seen, lasts = string.match(place or '', '^(%d+) (%d+) %S+ %d+ %a ')
    if seen and tonumber(seen) > now then set_back(0) end
    if seen and seen + lasts > now then break end
    -- Deletes the place first, as in queue.lua.
    redis.call('HDEL', KEYS[4], first)
    redis.call('LPOP', KEYS[3])
    first = redis.call('LINDEX', KEYS[3], '0')
  end
  if not first then
    return hold(ARGV[1], ARGV[3], ARGV[2], token) or string.format('%.0f', token)
  end
end
local first_run
first_run, bad = held(ARGV[1])
if bad then return bad end
if first_run then
  -- Permits of others may have ended since the first run.
  bad = grant()
  return bad or {0, ARGV[1], soonest()}
end
if ARGV[4] == '0' then
  -- A write that changes nothing: a server that has become a replica replies READONLY, not
  -- "refused". LINDEX fails if the queue is no list, as RPUSH below does.
  redis.call('HDEL', KEYS[4], '')
  redis.call('LINDEX', KEYS[3], '0')
else
  if redis.call('RPUSH', KEYS[3], ARGV[1]) == 1 then
    -- The queue was empty, or someone deleted it: places without a queue would never be granted.
    redis.call('DEL', KEYS[4])
  end
  -- A queue in which all waiters have died ends after twice the longest provisional time. At once:
  -- if Redis refuses a later command, the queue must end, too.
  redis.call('PEXPIRE', KEYS[3], '6000')
  local seen = now .. ' '
  local lasts = tonumber(ARGV[2]) < 3000 and ARGV[2] or '3000'
  local place = seen .. lasts .. ' ' .. ARGV[3] .. ' ' .. seen .. ARGV[4]
  redis.call('HSET', KEYS[4], ARGV[1], place)
  redis.call('PEXPIRE', KEYS[4], '6000')
end
bad = grant()
if bad then return bad end
-- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
return {0, holder and string.sub(holder, 1, 1088), soonest()}
