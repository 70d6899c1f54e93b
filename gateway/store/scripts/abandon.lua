-- Ends requests without an owner whose deadline is over, or that have had none for too long. ARGV: prefix, seconds, the
-- end to write, the end at a deadline, seconds that finished requests stay. Returns how many.
local prefix, patience, late, retention = ARGV[1], tonumber(ARGV[2]), ARGV[4], tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local ended = 0
local function finish(id, key, ending)
  ended = ended + 1
  redis.call('ZREM', prefix .. 'unowned', id)
  redis.call('HSET', key, 'state', 'finished', 'end', ending)
  redis.call('SREM', prefix .. 'open:' .. redis.call('HGET', key, 'caller'), id)
  for _, kind in ipairs({'request:', 'tokens:', 'logprobs:'}) do
    redis.call('EXPIRE', prefix .. kind .. id, retention)
  end
end
local waiting = redis.call('ZRANGE', prefix .. 'unowned', 0, -1, 'WITHSCORES')
for at = 1, #waiting, 2 do
  local id, since = waiting[at], tonumber(waiting[at + 1])
  local key = prefix .. 'request:' .. id
  local state, deadline = unpack(redis.call('HMGET', key, 'state', 'deadline'))
  if state ~= 'open' then
    redis.call('ZREM', prefix .. 'unowned', id)
  elseif deadline and deadline ~= '' and tonumber(deadline) <= now then
    finish(id, key, late)
  elseif since <= now - patience then
    finish(id, key, ARGV[3])
  end
end
return ended
