-- The fast path of enter.lua for locks: acquires a free lock in whose queue nobody waits. Prepended
-- to the functions of the queue, which Redis would otherwise create in every call. Anything unusual
-- is left to the rest of the script.
holder = redis.call('GET', KEYS[1])
if not holder and not redis.call('LINDEX', KEYS[3], '0') then
  local fence = redis.pcall('GET', KEYS[2])
  local time = redis.call('TIME')
  local last = type(fence) == 'string' and string.find(fence, '^%d+$') and tonumber(fence)
  -- The end of the lease in ms, as seconds and three more digits: cheaper than '%.0f', and no
  -- number in it is too large for '%d' anywhere.
  local ends = ARGV[2] + time[2] / 1000
  ends = string.format('%d%03d', time[1] + ends / 1000, ends % 1000)
  if ARGV[3] == 'r' then
    if KEYS[5] and last and last > 0 and last < 9007199254740991 then
      -- First: a server whose memory is full refuses it, but would allow any write after another.
      redis.call('SET', KEYS[1], 'leasehold:readers', 'PXAT', ends)
      redis.call('DEL', KEYS[5])
      local kept = redis.pcall('ZADD', KEYS[5], ends, ARGV[1])
      if kept == 1 then kept = redis.pcall('PEXPIREAT', KEYS[5], ends) end
      if kept == 1 then return {1, last} end
      redis.call('DEL', KEYS[1], KEYS[5])
      return kept
    end
  else
    local token = time[1] * 1000000 + time[2]
    local micros = time[2] + ARGV[3] - 1
    if micros < 1000000 and (not fence or last and last < token) then
      local kept =
        redis.pcall('SET', KEYS[2], string.format('%s%06d', time[1], micros), 'EX', '86400')
      if kept.err then return kept end
      redis.call('SET', KEYS[1], ARGV[1], 'PXAT', ends)
      return {1, token}
    end
  end
end

