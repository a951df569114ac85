-- Shared by the scripts that renew a reader; prepended to each of them, behind locks.lua and
-- later_end.lua.
-- Sets the ttl of a reader's lease. A writer becomes a reader: its downgrade may not have run.
-- Returns what renew.lua returns, or an error.
local function keep(id, ttl, may_shorten)
  -- A write that changes nothing. A server that has become a replica replies READONLY, not "not
  -- yours". A server whose memory is full allows it, and then the other writes, too.
  redis.call('ZREM', KEYS[5], '')
  read_clock()
  local till = now + ttl
  if holder == id then
    -- No earlier than its end as a writer: the client may count on that.
    return join(id, later_end(KEYS[1], till)) or 1
  end
  local before = holder == FLAG and redis.call('ZSCORE', KEYS[5], id)
  if before then
    return join(id, may_shorten and till or math.max(till, tonumber(before))) or 1
  end
  -- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
  return holder and string.sub(holder, 1, 1088) or 0
end

