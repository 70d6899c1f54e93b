-- Takes the lease of a verifier if no gateway has it. ARGV: prefix, instance, gateway, lease in milliseconds.
-- Returns {fence, ''} or {0, the gateway with the lease}. A fence is higher than all earlier ones even if Redis lost its
-- data, as it is at least the server's clock in microseconds.
local prefix, instance, me = ARGV[1], ARGV[2], ARGV[3]
local key = prefix .. 'verifier:' .. instance
local held = redis.call('GET', key)
if held then
  return {'0', string.match(held, '^(%S+)')}
end
local time = redis.call('TIME')
local fence = math.max(tonumber(redis.call('GET', prefix .. 'fence') or 0) + 1, time[1] * 1000000 + time[2])
local text = string.format('%.0f', fence)
redis.call('SET', prefix .. 'fence', text)
redis.call('SET', key, me .. ' ' .. text, 'PX', tonumber(ARGV[4]))
return {text, ''}
