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

