-- Records that a gateway has a client of a request. ARGV: prefix, id, gateway.
local key = ARGV[1] .. 'request:' .. ARGV[2]
if redis.call('EXISTS', key) == 1 then
  redis.call('HSET', key, 'reader:' .. ARGV[3], '1')
end
