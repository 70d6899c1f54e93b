-- Gives requests away: from now on nobody owns them. ARGV: prefix, gateway, then ids.
local prefix, me = ARGV[1], ARGV[2]
local now = redis.call('TIME')[1]
for at = 3, #ARGV do
  local key = prefix .. 'request:' .. ARGV[at]
  local owner, state = unpack(redis.call('HMGET', key, 'owner', 'state'))
  redis.call('ZREM', prefix .. 'owned:' .. me, ARGV[at])
  if owner == me and state == 'open' then
    redis.call('HSET', key, 'owner', '')
    redis.call('ZADD', prefix .. 'unowned', now, ARGV[at])
  end
end
