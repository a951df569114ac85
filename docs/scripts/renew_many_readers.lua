-- The variables that the files of a queue's scripts share. Prepended to each script.
-- holder: the value of the lock key. False if the lock is free, and always for permits; nil if it
--   has not been read.
-- drawn: the last token, once the fence has been read. nil if there is none.
-- want: what the refreshed places want from now on. nil to leave it as it is.
-- out: whether the hold of the caller has been ended.
-- ends_earlier: whether a reader that ended last has left, and others hold.
-- front: the id of the first place, once the queue has been read. nil if it must be read.
-- fence: the fence, once it has been read without a draw. nil if it must be read.
local holder, drawn, want, out, ends_earlier, front, fence

-- Shared by the scripts of the readers of several locks; prepended to them. The functions in the
-- files after it act on one lock at a time, and see its key and that of its readers as KEYS[1] and
-- KEYS[5].
-- KEYS each lock, followed by its readers
local all = KEYS
local KEYS = {}

-- Makes the functions act on the n-th lock, of which they know nothing yet.
local function turn_to(n)
  KEYS[1], KEYS[5], holder = all[2 * n - 1], all[2 * n], nil
end

-- Shared by the scripts that draw fencing tokens; prepended to each of them. The fast paths draw as
-- draw_free.lua says.

-- Returns the last token of a fence; nil if there is no fence. Returns nil and an error if the
-- fence cannot be used: BADFENCE if it holds no integer that, with `more` + 1 added, is below 2^53.
-- `which` precedes the text of the error. `fence` is the fence if the script has read it.
local function last_token(key, which, more, fence)
  if fence == nil then fence = redis.pcall('GET', key) end
  if type(fence) == 'table' then
    if string.find(fence.err, 'WRONGTYPE', 1, true) then
      return nil, redis.error_reply('BADFENCE ' .. which .. 'the fence is no string')
    end
    return nil, fence
  end
  if not fence then return nil end
  local last = tonumber(fence)
  -- From 2^53 on, a Lua number skips integers, and two holders could share a token.
  if not string.find(fence, '^%d+$') or last + more >= 9007199254740991 then
    return nil, redis.error_reply('BADFENCE ' .. which .. 'the fence is no integer below 2^53')
  end
  return last
end

-- Keeps a token in a fence; returns an error if Redis refuses. `last` is the token in the fence,
-- nil if there is none, and `micros` the time in µs, nil if it is not known.
-- The first grant of each 1000 s renews the expiry, which lasts an hour longer than a day. So does
-- each grant while the tokens are ahead of the clock: then it counts from when the clock is there.
local function store(key, token, last, micros)
  -- As text: Redis 7.2.0 to 7.2.4 write a number that is a multiple of 10^8 with an exponent.
  local text = type(token) == 'string' and token or string.format('%.0f', token)
  local lasts = last and micros and last < micros and last >= micros - micros % 1000000000
  local kept
  if lasts then
    kept = redis.pcall('SET', key, text, 'KEEPTTL')
  elseif micros and token - micros > 0 then
    local ends = string.format('%.0f', math.floor(token / 1000) + 90000000)
    kept = redis.pcall('SET', key, text, 'PXAT', ends)
  else
    kept = redis.pcall('SET', key, text, 'EX', '90000')
  end
  if kept.err then return kept end
end

-- The server's clock. Prepended to the scripts of queues, and to those of readers and permits.

-- The time since 1970, in µs and in whole ms; nil until `read_clock`.
local micros, now

-- Reads the clock at its first call in a run: most releases find no waiter and need no clock.
local function read_clock()
  if now then return end
  local time = redis.call('TIME')
  micros = time[1] * 1000000 + time[2]
  now = math.floor(micros / 1000)
end

-- The admission to a lock: one holder, or any number of readers. Prepended to the scripts of its
-- queue, behind state.lua, last_token.lua and now.lua. Only this file and the fast paths,
-- enter_free.lua, take_free.lua and leave_free.lua, know the keys of the holders.
-- KEYS[1] lock: the value of its only holder, or this flag while readers hold
-- KEYS[2] fence
-- KEYS[5] readers: a sorted set from holder id to the end of its lease, in ms
-- A waiter whose want is `r` reads. Any other waiter wants the lock alone, and a block of fencing
-- tokens, given by its size.
-- The lock key is authoritative. The readers count only while it contains the flag, and a new flag
-- begins without readers: a reader whose flag was deleted must not hold again under the next one.
-- The flag keeps out every program that acquires the lock with SET NX. It ends with the reader that
-- ends last, and so does the set.
local FLAG = 'leasehold:readers'

-- In a cluster that migrates the slot, a call leaves out the key of the readers if some key does
-- not exist: usually this one. If readers hold nevertheless, the keys are being moved.
if #KEYS == 4 and redis.call('GET', KEYS[1]) == FLAG then
  return redis.error_reply('TRYAGAIN the readers are at another node')
end

-- Whether `draw` drew a new token for a reader, which the fence must then keep.
local is_drawn

-- Reads the holder of the lock, unless the script knows it, and drops the readers whose lease has
-- ended. Writes only if a lease has ended: after any write, even one that changes nothing, a server
-- whose memory is full allows the further writes of the script. It must refuse a new holder.
-- If `only_reads`, leaves the readers as they are: the flag ends with the last of them.
local function settle(only_reads)
  if holder == nil then holder = redis.call('GET', KEYS[1]) end
  if only_reads or holder ~= FLAG then return end
  read_clock()
  local first = redis.call('ZRANGE', KEYS[5], '0', '0', 'WITHSCORES')
  if first[2] then
    if tonumber(first[2]) >= now then return end
    redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', '(' .. now)
    if redis.call('EXISTS', KEYS[5]) == 1 then return end
  end
  redis.call('DEL', KEYS[1])
  holder = false
end

-- Returns whether a waiter with this want fits; without a want, whether any waiter can fit.
local function fits(want)
  if want == 'r' and not KEYS[5] then return false end
  if holder then return holder == FLAG and (not want or want == 'r') end
  return not want or want == 'r' or tonumber(want) ~= nil
end

-- Returns a reader's token, or else the first token of the next block. Otherwise nil and an error:
-- BADFENCE if the fence holds no integer that, with the block, is below 2^53.
-- A reader has the last token drawn, that of the holder before it. If there is none, it draws one.
local function draw(want)
  local more = want == 'r' and 0 or want - 1
  local last, bad = last_token(KEYS[2], '', more, fence)
  if bad then return nil, bad end
  drawn, fence = last, nil
  is_drawn = want == 'r' and (last or 0) == 0
  if want == 'r' and not is_drawn then return last end
  read_clock()
  return math.max(micros, (last or 0) + 1)
end

-- Returns the score of a reader as the text of an end, in ms. Another program may have written any
-- score.
local function end_text(score)
  return string.format('%.0f', math.min(score, 2 ^ 53))
end

-- Makes a client a reader until `till`, in ms. Returns an error if Redis refuses: the client is
-- among the readers then, but the lock key is as before.
local function join(id, till)
  if holder ~= FLAG then redis.call('DEL', KEYS[5]) end
  local kept = redis.pcall('ZADD', KEYS[5], till, id)
  if type(kept) == 'table' then return kept end
  local last = redis.pcall('ZRANGE', KEYS[5], '-1', '-1', 'WITHSCORES')
  if last.err then return last end
  local ends = end_text(last[2])
  kept = redis.pcall('PEXPIREAT', KEYS[5], ends)
  if type(kept) == 'table' then return kept end
  kept = redis.pcall('SET', KEYS[1], FLAG, 'PXAT', ends)
  if kept.err then return kept end
  holder = FLAG
end

-- Makes a client a holder for this many ms, under a token from `draw`, a number or its digits. If
-- Redis refuses, returns an error: then the client is no holder.
local function hold(id, want, ms, token)
  local bad
  if want ~= 'r' then
    local more = want - 1
    bad = store(KEYS[2], more == 0 and token or token + more, drawn, micros)
    if bad then return bad end
    redis.call('SET', KEYS[1], id, 'PX', ms)
    holder, drawn = id, token
    return nil
  end
  -- The next writer's token must be above it.
  bad = is_drawn and store(KEYS[2], token)
  if bad then return bad end
  local is_first = holder ~= FLAG
  if is_first then
    -- Before the other writes: a server whose memory is full must refuse it, as `settle` says.
    bad = redis.pcall('SET', KEYS[1], FLAG, 'PX', ms)
    if bad.err then return bad end
  end
  read_clock()
  bad = join(id, now + ms)
  if bad then
    -- The call fails, so nobody would end this read lock.
    redis.call('ZREM', KEYS[5], id)
    if is_first then redis.call('DEL', KEYS[1]) end
  end
  return bad
end

-- Returns the token of the client, or the last one of its block, if it holds the lock; nil if it
-- does not; nil and an error.
local function held(id)
  if holder ~= id and not (holder == FLAG and redis.call('ZSCORE', KEYS[5], id)) then
    return nil
  end
  -- The last token drawn is the holder's. If someone deleted the fence, a new token serves.
  local token, bad = draw('r')
  if is_drawn and not bad then bad = store(KEYS[2], token) end
  if bad then return nil, bad end
  return token
end

-- Ends the hold of `id`, and returns whether it had one. The lock key stays unless a reader leaves:
-- a grant replaces it, or `left` deletes it. A forced release of all readers names the flag: they
-- do not count without it.
local function take_out(id)
  if holder == FLAG and id ~= FLAG then
    -- The last two: a cluster that migrates the slot refuses access to the set once it is empty.
    local last = redis.call('ZRANGE', KEYS[5], '-2', '-1', 'WITHSCORES')
    if redis.call('ZREM', KEYS[5], id) == 0 then return false end
    if last[3] then
      local was_last = last[3] == id
      ends_earlier = ends_earlier or was_last
      redis.call('PEXPIREAT', KEYS[1], end_text(was_last and last[2] or last[4]))
    else
      holder = false
    end
    return true
  end
  local value = holder
  -- A forced release names a value of more than 1088 bytes as the inspect script does: by its first
  -- 1088 bytes and the SHA-1 of the whole.
  if value and #id > 1088 and #value > 1088 then
    value = string.sub(value, 1, 1088) .. redis.sha1hex(value)
  end
  if not value or value ~= id then return false end
  holder = false
  return true
end

-- Deletes the lock key after `take_out`, and publishes the release. Does nothing if other readers
-- still hold the lock, or a grant has given it to a waiter.
local function left(channel, id)
  if holder then return end
  redis.call('DEL', KEYS[1])
  -- A user without the PUBLISH permission can still release.
  redis.pcall('PUBLISH', channel, id)
end

-- Returns in how many ms the lock expires: -1 without an expiry, -2 if it is free. Then returns for
-- how many ms a holder of one has held it: negative if that is not known.
local function soonest()
  local age = drawn and math.floor((micros - drawn) / 1000) or -1
  return redis.call('PTTL', KEYS[1]), age
end

-- Returns the later of `till` and the end of a key, in ms; `till` if the key has no end. The clock
-- is read after PTTL: with an earlier time, a pause of the server between the two would make the
-- result too early.
local function later_end(key, till)
  local left = redis.call('PTTL', key)
  local time = redis.call('TIME')
  return math.max(till, time[1] * 1000 + math.floor(time[2] / 1000) + left)
end

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
