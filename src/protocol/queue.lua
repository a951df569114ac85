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

