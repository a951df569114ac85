-- Adds what a client has counted to the shared statistics, once.
-- KEYS: the hash; a mark beside it that is this client's own.
-- ARGV: the number of this addition, which rises; the fields and what to add, as in "attempts 3 released 2".
-- Replies: 1 added; 0 it was added before, by a try whose answer got lost; an error: nothing was added.
if tonumber(redis.call('GET', KEYS[2]) or 0) >= tonumber(ARGV[1]) then
  return 0
end
local added, refused = 0, nil
for field, count in string.gmatch(ARGV[2], '(%S+) (%d+)') do
  local answer = redis.pcall('HINCRBY', KEYS[1], field, count)
  if type(answer) == 'table' then
    refused = answer
  else
    added = added + 1
  end
end
-- A field that somebody else has filled with something else keeps none of the others back.
if added == 0 then
  return refused
end
redis.call('SET', KEYS[2], ARGV[1], 'EX', 3600)
return 1
