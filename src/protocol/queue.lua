-- The functions that the scripts of a queue share; prepended to each of them, behind those of an
-- admission, which know the holders and whether a waiter fits. They are few: Redis creates them in
-- every call of a script. Constant numbers are strings: Redis would format them in every call.
-- KEYS[3] queue: a list of the waiters' holder ids, first in line first
-- KEYS[4] places: a hash from holder id to "seen provisional want entered mark inbox"
--   seen: when the place was last refreshed, in ms
--   provisional: how long the place lasts without a refresh, and a grant to it, both from `seen`
--   want: what the waiter wants, for the admission
--   entered: when the place entered the queue, in ms
--   mark: when a grant reaches the place
--     l: while a client listens to its inbox
--     n: always: its client is new and about to listen
--     p: as l; the place was passed over
--     r: always: it was passed over, and its next refresh learns of the grant
--     a: always: its client may listen at another node, where this server cannot see it
--     A refresh makes n, p and r an l if a client listens; otherwise it makes p an r.
--   inbox: the channel on which the client receives grants, empty for none
-- Earlier versions of leasehold write "seen provisional inbox". Such a place counts as marked `a`,
-- and its client gets the message of its version. Their scripts read the rest of a newer place as
-- an inbox to which nobody listens: its client learns of their grants from its next refresh.

-- The waiters whose client reads the reply to this script, and the first token of those that it has
-- granted what they want. Only a refresh has them.
local refreshed, granted

-- Grants the waiters in line what they want, as long as they fit, and tells their clients. A waiter
-- that a grant does not reach keeps its position and is marked as passed over. Returns an error if
-- a grant failed; nil and true if it stopped at a waiter that it reaches and that does not fit.
local function grant()
  local n, count = 0, 0
  -- The inboxes to which nobody listens, and how many they are.
  local silent, silent_count = nil, 0
  -- At most 100 grants: the server does nothing else meanwhile. Then the client of the next place
  -- gets a message and refreshes it, which goes on. A refresh must find its own places.
  while fits() and count < 100 and (n < 1000 or refreshed) do
    local id = redis.call('LINDEX', KEYS[3], n == 0 and '0' or n)
    if not id then return nil end
    read_clock()
    local place = redis.call('HGET', KEYS[4], id) or ''
    local seen, lasts, want, mark, inbox =
      string.match(place, '^(%d+) (%d+) (%S+) %d+ (%a) (.*)$')
    local size = want and ' ' .. want or ''
    if not want then
      seen, lasts, inbox = string.match(place, '^(%d+) (%d+) (.*)$')
      want, mark = '1', 'a'
    end
    local left = seen and seen + lasts - now or 0
    -- The clock may have been set back.
    if left > 0 and left - lasts > 0 then left = lasts + 0 end
    local is_reached = mark ~= 'l' and mark ~= 'p' or refreshed and refreshed[id]
    if left > 0 and not is_reached and inbox ~= '' and not (silent and silent[inbox])
      and silent_count < 100
    then
      -- Not the reply of PUBLISH: a client whose subscription has stayed at a replica would receive
      -- a grant that nobody here has received, and hold the lock together with the next waiter.
      local listeners = redis.pcall('PUBSUB', 'NUMSUB', inbox)
      -- A user without this permission grants to the first living place.
      is_reached = listeners.err or listeners[2] > 0
      if not is_reached then
        silent = silent or {}
        silent[inbox] = true
        silent_count = silent_count + 1
      end
    end
    if left > 0 and not is_reached then
      if mark == 'l' then
        -- A deletion first: a server whose memory is full allows it, and then the other writes too.
        redis.call('HDEL', KEYS[4], '')
        redis.call('HSET', KEYS[4], id, (string.gsub(place, '^(%d+ %d+ %S+ %d+) l', '%1 p')))
      end
      n = n + 1
    else
      if left > 0 and not fits(want) then return nil, true end
      if n == 0 then
        redis.call('LPOP', KEYS[3])
      else
        redis.call('LREM', KEYS[3], '1', id)
      end
      redis.call('HDEL', KEYS[4], id)
      if left > 0 then
        local token, bad = draw(want)
        local digits = token and string.format('%.0f', token)
        bad = bad or hold(id, want, left, digits)
        -- The waiter has left the queue: it joins again and receives this error.
        if bad then return bad end
        if granted then granted[id] = token end
        if inbox ~= '' then
          -- A user without the PUBLISH permission can still grant: the next refresh reports it.
          redis.pcall('PUBLISH', inbox, 'grant ' .. digits .. size .. ' ' .. id)
        end
        count = count + 1
      end
    end
  end
  if count < 100 or not fits() then return nil end
  local id = redis.call('LINDEX', KEYS[3], n)
  local place = id and redis.call('HGET', KEYS[4], id) or ''
  local inbox = string.match(place, '^%d+ %d+ %S+ %d+ %a (.+)$')
  if inbox then redis.pcall('PUBLISH', inbox, 'refresh ' .. id) end
end

