-- Notes with which model a request begins, and whether speculators may draw for it; the first to say so decides.
-- ARGV: prefix, model, then pairs of id and drawn ('0' or '1').
local prefix, model = ARGV[1], ARGV[2]
for at = 3, #ARGV, 2 do
  local key = prefix .. 'request:' .. ARGV[at]
  if redis.call('EXISTS', key) == 1 then
    redis.call('HSETNX', key, 'model', model)
    redis.call('HSETNX', key, 'drawn', ARGV[at + 1])
  end
end
