-- Shared by the scripts that draw fencing tokens; prepended to each of them.
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

