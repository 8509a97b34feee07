#!/bin/sh
set -e
printf '#!/bin/sh\necho "Hello, $1"\n' > /app/greet.sh
