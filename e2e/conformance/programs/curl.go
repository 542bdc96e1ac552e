// What the tests use of curl: -q, -s, -k, -g, -I, -o FILE, -w '%{http_code}', -X METHOD,
// -H/--header LINE, -m/--max-time and --connect-timeout SECONDS.
package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

var long = map[string]string{"--header": "-H", "--max-time": "-m", "--connect-timeout": "-m"}

func main() {
	method, url, output, format, seconds := "", "", "", "", "30"
	head := false
	headers := http.Header{}
	args := os.Args[1:]
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if short, known := long[arg]; known {
			arg = short
		}
		if !strings.HasPrefix(arg, "-") {
			url = arg
			continue
		}
		for flags := arg[1:]; flags != ""; {
			flag := flags[0]
			flags = flags[1:]
			if strings.IndexByte("qskgI", flag) >= 0 {
				head = head || flag == 'I'
				continue
			}
			value := flags
			if flags = ""; value == "" {
				value, args = args[0], args[1:]
			}
			switch flag {
			case 'o':
				output = value
			case 'w':
				format = value
			case 'X':
				method = value
			case 'm':
				seconds = value
			case 'H':
				name, rest, _ := strings.Cut(value, ":")
				headers.Add(name, strings.TrimSpace(rest))
			default:
				fail("no such option: -%c", flag)
			}
		}
	}
	if method == "" {
		method = map[bool]string{true: "HEAD", false: "GET"}[head]
	}
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	limit, err := time.ParseDuration(seconds + "s")
	if err != nil {
		fail("%v", err)
	}
	request, err := http.NewRequest(method, url, nil)
	if err != nil {
		fail("%v", err)
	}
	request.Header = headers
	insecure := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	client := http.Client{Transport: insecure, Timeout: limit}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	answer, err := client.Do(request)
	if err != nil {
		fail("%v", err)
	}
	if output == "" && !head {
		io.Copy(os.Stdout, answer.Body)
	}
	fmt.Print(strings.ReplaceAll(format, "%{http_code}", fmt.Sprint(answer.StatusCode)))
}

func fail(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "curl: "+format+"\n", values...)
	os.Exit(7)
}
