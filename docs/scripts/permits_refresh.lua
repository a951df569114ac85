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

-- Returns the later of `till` and the end of a key, in ms; `till` if the key has no end. The clock
-- is read after PTTL: with an earlier time, a pause of the server between the two would make the
-- result too early.
local function later_end(key, till)
  local left = redis.call('PTTL', key)
  local time = redis.call('TIME')
  return math.max(till, time[1] * 1000 + math.floor(time[2] / 1000) + left)
end

-- The admission to a semaphore: as many holders as its permits allow. Prepended to the scripts of
-- its queue, which call these functions and know nothing else of the semaphore.
-- KEYS[1] permits: a sorted set with a member for each holder, and `out` in front of them
--   member "<k> <owner>:<uuid>", the holder id: holds k permits; its score is when they end, in ms
--   member "out": its score is minus the number of permits that are out
-- KEYS[2] fence
-- A waiter wants "<k>/<n>": k permits, if with them at most n are out. The number n belongs to the
-- waiter and is stored nowhere else.

-- No single value stands for the holders.
holder = false

-- How many permits are out.
local used

-- `out` and the member that ends first, with their scores; nil if the script has changed the set
-- since it has read them.
local first

-- Reads how many permits are out, after removing those that have ended.
local function settle()
  read_clock()
  local found = redis.call('ZRANGE', KEYS[1], '0', '1', 'WITHSCORES')
  used = found[4] and found[1] == 'out' and tonumber(found[4]) >= now and -found[2] or 0
  if used > 0 or not found[1] then
    first = found
    return
  end
  repeat
    found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. now, 'WITHSCORES', 'LIMIT', '0',
      '1001')
    used = found[1] == 'out' and -found[2] or 0
    local ended, sum = {}, 0
    for n = 3, #found, 2 do
      ended[#ended + 1] = found[n]
      sum = sum + (string.match(found[n], '^(%d+) ') or 0)
    end
    if used <= sum then
      -- All have ended, or someone else has written here: then no holder keeps its permits.
      -- DEL only if the key exists: after any write, even one that changes nothing, a server whose
      -- memory is full allows the further writes of the script. It must refuse a new holder.
      if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('DEL', KEYS[1]) end
      used = 0
      return
    end
    if #ended > 0 then
      redis.call('ZREM', KEYS[1], unpack(ended))
      used = used - sum
      redis.call('ZADD', KEYS[1], -used, 'out')
    end
  until #found < 2002
end

-- Returns whether a waiter with this want fits; without a want, whether any waiter may fit.
local function fits(want)
  if not want then return true end
  local k, n = string.match(want, '^(%d+)/(%d+)$')
  return k and used + k <= tonumber(n)
end

-- Returns the next token, or nil and an error: BADFENCE if the fence holds no integer below
-- 2^53 - 1.
local function draw()
  local last, bad = last_token(KEYS[2], '', 0)
  if bad then return nil, bad end
  drawn = last
  return math.max(micros, (last or 0) + 1)
end

-- Takes back the permits that the client has, and returns whether it had any.
local function take_out(id)
  local k = string.match(id, '^(%d+) ')
  if not k or redis.call('ZREM', KEYS[1], id) == 0 then return false end
  first, used = nil, used - k
  if used > 0 then
    redis.call('ZADD', KEYS[1], -used, 'out')
  else
    redis.call('DEL', KEYS[1])
  end
  return true
end

-- Gives a client the permits that it wants for this many ms, under a token from `draw`. If Redis
-- refuses, returns an error: then the client has no permits.
local function hold(id, want, ms, token)
  local bad = store(KEYS[2], token, drawn, micros)
  if bad then return bad end
  first = nil
  local more = used + string.match(want, '^%d+')
  local new = redis.call('ZADD', KEYS[1], -more, 'out', now + ms, id)
  if new < (used == 0 and 2 or 1) then
    -- The network has run the call twice: its first run has counted these permits.
    redis.call('ZADD', KEYS[1], -used, 'out')
  else
    used = more
  end
  -- The key lasts until the last permit ends.
  local ends = string.format('%.0f', later_end(KEYS[1], now + ms))
  local kept = redis.pcall('PEXPIREAT', KEYS[1], ends)
  if type(kept) == 'table' then
    -- The call fails, so nobody would give these permits back.
    take_out(id)
    return kept
  end
end

-- Returns a token of the client if it has permits; nil if it has none; nil and an error.
local function held(id)
  if not redis.call('ZSCORE', KEYS[1], id) then return nil end
  -- The message or reply with its first token is lost or on its way. Others may have drawn tokens
  -- since, so it gets a new one.
  local token, bad = draw()
  bad = bad or store(KEYS[2], token, drawn, micros)
  if bad then return nil, bad end
  return token
end

-- Publishes nothing: every waiter has a place, and only a grant ends its wait.
local function left() end

-- Returns in how many ms the first permits end, -2 if nobody holds any; and how many are out.
local function soonest()
  first = first or redis.call('ZRANGE', KEYS[1], '0', '1', 'WITHSCORES')
  -- Another program may have written any score.
  local out_now = math.max(math.min(used, 2 ^ 53), -1)
  return first[4] and math.min(first[4] - now, 2 ^ 53) or -2, out_now
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
