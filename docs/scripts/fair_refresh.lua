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

-- Shared by the scripts of a queue; prepended to each of them, behind the functions of an admission
-- (locks.lua or admit_permits.lua), which know the holders and whether a waiter fits. There are few
-- functions, because Redis creates them in every call of a script.
-- Constant arguments of commands are strings, because Redis would format a number in every call.
-- KEYS[3] queue: a list of the holder ids of the waiters, in order
-- KEYS[4] places: a hash from holder id to "seen provisional want entered mark inbox"
--   seen: when the place was last refreshed, in ms
--   provisional: how long the place lasts without a refresh, and a grant to it without a renewal,
--     in ms, both from `seen`
--   want: what the waiter wants, in the form that the admission reads
--   entered: when the place entered the queue, in ms
--   mark: when a grant reaches the place
--     l: while a client listens to its inbox
--     n: always: its client is new and about to listen
--     p: while a client listens to its inbox; the place was passed over
--     r: always: it was passed over and then refreshed, and its client learns of the grant from the
--       next refresh
--     a: always: its client may listen at another node, where this server cannot see it
--     A refresh makes n, p and r an l if a client listens; otherwise it makes p an r.
--   inbox: the channel on which the client receives grants, empty for none
-- A place of another form counts as that of a dead waiter.

-- refreshed: the set of the holder ids whose places the script refreshes; their client learns of a
--   grant from the reply. nil if the script refreshes none.
-- granted: a map from each holder id that `grant` made a holder to its first token. Only
--   queue_refresh.lua sets it, for its reply.
local refreshed, granted

-- Sets `seen` to now in the places from the one with this index on, as far as it is in the future:
-- the clock was set back. The places of dead waiters would otherwise not end before the clock is
-- there again. At most 1000 places, because the server does nothing else meanwhile.
local function set_back(first)
  for n = first, first + 999 do
    local id = redis.call('LINDEX', KEYS[3], n)
    if not id then return end
    local seen, rest = string.match(redis.call('HGET', KEYS[4], id) or '', '^(%d+)( .*)$')
    if seen and tonumber(seen) > now then
      -- A deletion first, as below.
      redis.call('HDEL', KEYS[4], '')
      redis.call('HSET', KEYS[4], id, now .. rest)
    end
  end
end

-- Has the client of the n-th place refresh it at once.
local function prompt(n)
  local id = redis.call('LINDEX', KEYS[3], n)
  local place = id and redis.call('HGET', KEYS[4], id) or ''
  local inbox = string.match(place, '^%d+ %d+ %S+ %d+ %a (.+)$')
  if inbox then redis.pcall('PUBLISH', inbox, 'refresh ' .. id) end
end

-- Grants the waiters what they want, in the order of the queue and as long as they fit, and tells
-- their clients. A waiter that a grant does not reach keeps its position and is marked as passed
-- over. Returns an error if a grant failed.
local function grant()
  -- n: how many places were passed over, and so the index of the next one. count: how many grants.
  local n, count = 0, 0
  -- The set of the inboxes that have no listener, and their number. From 100 on, no other inbox is
  -- looked up, and the places with another inbox count as not reached.
  local silent, silent_count = nil, 0
  -- At most 100 grants and 1000 places passed over, because the server does nothing else meanwhile.
  -- After 100 grants, a message tells the client of the next place to refresh it, and the refresh
  -- continues. A refresh passes over any number of places: it must find its own.
  while fits() and count < 100 and (n < 1000 or refreshed) do
    local id = front or redis.call('LINDEX', KEYS[3], n == 0 and '0' or n)
    if not id then return nil end
    front = nil
    read_clock()
    local place = redis.call('HGET', KEYS[4], id) or ''
    local seen, lasts, want, mark, inbox =
      string.match(place, '^(%d+) (%d+) (%S+) %d+ (%a) (.*)$')
    if seen and tonumber(seen) > now then
      set_back(n)
      seen, place = now, now .. string.sub(place, #seen + 1)
    end
    local left = seen and seen + lasts - now or 0
    local is_reached = mark ~= 'l' and mark ~= 'p' or refreshed and refreshed[id]
    if left > 0 and not is_reached and inbox ~= '' and not (silent and silent[inbox])
      and silent_count < 100
    then
      -- Not by the reply of PUBLISH: a client may still be subscribed at a server that is a replica
      -- now. It would receive a grant that PUBLISH reports here as received by nobody, and hold the
      -- lock together with the next waiter.
      local listeners = redis.pcall('PUBSUB', 'NUMSUB', inbox)
      -- A user without the permission for PUBSUB counts every living place as reached.
      is_reached = listeners.err or listeners[2] > 0
      if not is_reached then
        silent = silent or {}
        silent[inbox] = true
        silent_count = silent_count + 1
      end
    end
    if left > 0 and not is_reached then
      if mark == 'l' then
        -- A deletion first: a server whose memory is full allows it, and after it the other writes
        -- of this script, too.
        redis.call('HDEL', KEYS[4], '')
        redis.call('HSET', KEYS[4], id, (string.gsub(place, '^(%d+ %d+ %S+ %d+) l', '%1 p')))
      end
      n = n + 1
    else
      local token, digits
      if left > 0 then
        if not fits(want) then return nil end
        local bad
        token, bad = draw(want)
        digits = token and string.format('%.0f', token)
        -- Before the place is deleted: the waiter keeps its turn if Redis refuses a command. A
        -- cluster that migrates the slot refuses access to a key that does not exist.
        bad = bad or hold(id, want, string.format('%d', left), digits)
        if bad then return bad end
      end
      -- Deletes the place first: if Redis refuses the second command, the list has an id without a
      -- place, which the next grant removes. A place that is not in the list is never granted.
      redis.call('HDEL', KEYS[4], id)
      if n == 0 then
        redis.call('LPOP', KEYS[3])
      else
        redis.call('LREM', KEYS[3], '1', id)
      end
      if left > 0 then
        if granted then granted[id] = token end
        if inbox ~= '' then
          -- A user without the PUBLISH permission can still grant: the reply to the waiter's next
          -- refresh contains the grant.
          redis.pcall('PUBLISH', inbox, 'grant ' .. digits .. ' ' .. want .. ' ' .. id)
        end
        count = count + 1
      end
    end
  end
  if count == 100 and fits() then prompt(n) end
end

-- Refreshes the places of a client's waiters, and grants to those in line who fit.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places, KEYS[5] readers of a lock
-- ARGV[1] the client's inbox, ARGV[2..] holder ids
-- Replies with a list of one item for each holder id: 0 if it waits, its fencing token if it was
-- granted what it wants, -1 if neither: it then gets no grant later. The next item is the number of
-- ms until the lock expires or the first permits end: -1 without an expiry, -2 if nobody holds.
-- Then the last number of a refusal by queue_enter.lua, and the value of the lock key, if any.
-- Errors: BADFENCE if `draw` of the admission fails with it. Grants made before an error stand:
-- the next refresh replies with them.
read_clock()
settle(true)
-- A queue in which all waiters have died ends after twice the longest provisional time. One of its
-- keys is enough in each refresh, in turns: a place is refreshed in every second. First, because a
-- server whose memory is full allows it, and then the other writes, too.
local turn = math.floor(now / 1000) % 2
if redis.call('PEXPIRE', KEYS[3 + turn], '6000') == 0 then
  -- Places without a queue have no order.
  redis.call('DEL', KEYS[4])
end
refreshed, granted = {}, {}
-- Fields and values of the places; whether a place was refreshed late.
local places, is_late = {}, false
-- Whether a client listens to the inbox now, whether the clock was set back since a refresh, and
-- whether any of the waiters fits. The others' own refreshes find out whether they fit.
local listens, is_set_back, any_fits
local reply = {}
for n = 2, #ARGV do
  local id = ARGV[n]
  local place = redis.call('HGET', KEYS[4], id)
  local seen, lasts, wanted, entered, mark =
    string.match(place or '', '^(%d+) (%d+) (%S+) (%d+) (%a) ')
  if seen then
    is_set_back = is_set_back or tonumber(seen) > now
    is_late = is_late or now - seen > 1000
    -- Only the place of a mutex can want something else later.
    if want and string.sub(wanted, 1, 1) == '+' then wanted = want end
    any_fits = any_fits or fits(wanted)
    if mark ~= 'l' and mark ~= 'a' then
      if listens == nil then
        local listeners = redis.pcall('PUBSUB', 'NUMSUB', ARGV[1])
        -- A user without the permission for PUBSUB counts as listening.
        listens = ARGV[1] ~= '' and (listeners.err ~= nil or listeners[2] > 0)
      end
      mark = listens and 'l' or mark == 'p' and 'r' or mark
    end
    places[#places + 1] = id
    places[#places + 1] = table.concat({now, lasts, wanted, entered, mark, ARGV[1]}, ' ')
    refreshed[id] = true
  end
  reply[n - 1] = seen and 0 or -1
end
-- Lua can pass some thousand arguments.
for n = 1, #places, 1000 do
  redis.call('HSET', KEYS[4], unpack(places, n, math.min(n + 999, #places)))
end
if is_late then redis.call('PEXPIRE', KEYS[4 - turn], '6000') end
if is_set_back then set_back(0) end
local bad
if any_fits or is_set_back then
  settle()
  bad = grant()
  if bad then return bad end
end
for n = 2, #ARGV do
  local token = granted[ARGV[n]]
  if reply[n - 1] == -1 then
    -- Granted before: the message was lost or is on its way.
    token, bad = held(ARGV[n])
    if bad then return bad end
  end
  reply[n - 1] = token or reply[n - 1]
end
reply[#ARGV], reply[#ARGV + 1] = soonest()
-- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
if holder then reply[#ARGV + 2] = string.sub(holder, 1, 1088) end
return reply
