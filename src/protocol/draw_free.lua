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

