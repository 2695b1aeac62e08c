. ./leap.sh
leap 2024 && leap 2000 && ! leap 2023 && ! leap 1900 && echo passed
