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

-- The fast path of queue_enter.lua for a semaphore: acquires permits that are free, in a queue in
-- which nobody waits, while no permits have ended. Prepended to the functions of the queue, which
-- Redis would otherwise create in every call. Behind it, draw_free.lua draws the token, and
-- permits_take_free.lua takes the permits. Anything unusual is left to the rest of the script.
-- A user without the permission for EXISTS has no fast path.

-- The number of permits that are out, and how many the caller wants.
local used, k
-- The reply to TIME if the caller can have them, the time in ms, and for how many ms the key lasts.
local time, now, left
-- The call draws one token.
local more = 0
do
  local redis, KEYS, ARGV = redis, KEYS, ARGV -- as in take_free.lua
  -- The number of permits that are out, and those that end first: see admit_permits.lua.
  local found = redis.call('ZRANGE', KEYS[1], '0', '1', 'WITHSCORES')
  used = found[4] and found[1] == 'out' and -found[2] or 0
  local n
  k, n = string.match(ARGV[3], '^(%d+)/(%d+)$')
  if k and n - used - k >= 0 and (used > 0 or not found[1])
    and redis.pcall('EXISTS', KEYS[3]) == 0
  then
    -- Before the clock is read, as in later_end.lua.
    left = used > 0 and redis.call('PTTL', KEYS[1]) or 0
    time = redis.call('TIME')
    now = time[1] * 1000 + time[2] / 1000
    if used > 0 and found[4] - now < 0 then time = nil end
  end
end

-- Draws the tokens of a fast path, in one command; the others draw as last_token.lua says. Follows
-- take_free.lua and permits_enter_free.lua, which set `time` if they need a token.

-- The first token, as text, or the text of an error: then the fence is as before.
local token, bad
if time then
  bad = time.err
  if not bad then
    -- Tokens are text of 16 digits: to format or to convert one takes a third as long as a command.
    -- Redis 7.2.0 to 7.2.4 write a number that is a multiple of 10^8 with an exponent.
    local seconds, micros = time[1], time[2]
    -- The last token of the block.
    local text = more > 0 and micros + more
    if #micros < 6 then micros = string.sub('00000' .. micros, -6) end
    token = seconds .. micros
    if not text then
      text = token
    elseif text < 1000000 then
      text = seconds .. string.format('%06d', text)
    else
      text = string.format('%.0f', token + more)
    end
    local fence = redis.pcall('SET', KEYS[2], text, 'KEEPTTL', 'GET')
    -- The rule of `store` in last_token.lua. Of the same length, texts compare as numbers do.
    if not (fence and #fence == 16 and fence < token and fence > string.sub(seconds, 1, 7)
      and string.match(fence, '^%d+$', 8))
    then
      bad = fence and fence.err
      local last = fence and not bad and tonumber(fence)
      -- From 2^53 on, a Lua number skips integers, and two holders could share a token.
      if bad and string.find(bad, 'WRONGTYPE', 1, true) then
        bad = 'BADFENCE the fence is no string'
      elseif not bad and fence
        and not (last and string.find(fence, '^%d+$') and last + more < 9007199254740991)
      then
        redis.call('SET', KEYS[2], fence, 'KEEPTTL')
        bad = 'BADFENCE the fence is no integer below 2^53'
      end
      if not bad then
        local first = math.max(tonumber(token), (last or 0) + 1)
        local option, lasts = 'EX', '90000'
        if first - token > 0 then
          option, lasts = 'PXAT', string.format('%.0f', math.floor(first / 1000) + 90000000)
        end
        token = string.format('%.0f', first)
        bad = redis.pcall('SET', KEYS[2], string.format('%.0f', first + more), option, lasts).err
      end
    end
  end
end

-- Takes the permits for which permits_enter_free.lua has found room. Follows draw_free.lua, whose
-- command is the first write: a server whose memory is full refuses it, but would allow any after
-- it.
if bad then return {err = bad} end
if token then
  local redis, string, KEYS, ARGV = redis, string, KEYS, ARGV -- as in take_free.lua
  local till = now + ARGV[2]
  local ends = string.format('%d%03d', till / 1000, till % 1000)
  -- As text if possible.
  local out = used == 0 and k or used + k
  if redis.call('ZADD', KEYS[1], '-' .. out, 'out', ends, ARGV[1]) == 0 then
    -- The network has run the call twice: its first run has counted these permits.
    out = used
    redis.call('ZADD', KEYS[1], '-' .. out, 'out')
  end
  -- The key lasts until the last permit ends.
  if now + left > till then ends = string.format('%.0f', now + left) end
  local kept = redis.pcall('PEXPIREAT', KEYS[1], ends)
  if kept == 1 then return token end
  -- The call fails, so nobody would give these permits back.
  redis.call('ZREM', KEYS[1], ARGV[1])
  if out - k > 0 then
    redis.call('ZADD', KEYS[1], '-' .. out - k, 'out')
  else
    redis.call('DEL', KEYS[1])
  end
  return kept
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
