-- Releases the lease of a verifier. ARGV: prefix, instance, gateway, fence.
local key = ARGV[1] .. 'verifier:' .. ARGV[2]
if redis.call('GET', key) == ARGV[3] .. ' ' .. ARGV[4] then
  redis.call('DEL', key)
end
