package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"unicode/utf8"

	"rookery/protocol"
)

// room is what the rest of a command may take of protocol.MaxBody.
const room = 8 << 10

// prompt finds what was asked: the arguments, else stdin when it is no terminal; a
// single - forces stdin. A prompt in the arguments never waits on stdin.
func (a *app) prompt(args []string) (string, error) {
	text := strings.Join(args, " ")
	if len(args) == 0 || len(args) == 1 && args[0] == "-" {
		if len(args) == 0 && isTerminal(a.stdin) {
			return "", usagef("no prompt: give it as an argument or on standard input")
		}
		b, err := io.ReadAll(io.LimitReader(a.stdin, protocol.MaxBody+1))
		if err != nil {
			return "", fmt.Errorf("read the prompt from standard input: %w", err)
		}
		text = string(b)
	}
	if !utf8.ValidString(text) {
		return "", usagef("the prompt is not valid UTF-8: convert it first, for example with iconv")
	}
	return text, nil
}

// checkPrompt refuses what can't be sent, before anything is made.
func checkPrompt(text string, images []string) error {
	if strings.TrimSpace(text) == "" && len(images) == 0 {
		return usagef("the prompt is empty")
	}
	n := len(protocol.Encode(text))
	for _, image := range images {
		n += len(image)
	}
	if n > protocol.MaxBody-room {
		return usagef("the prompt is too large: %d KiB with images, encoded; the limit is %d KiB. Put the text in a file of the workspace and name it",
			n>>10, protocol.MaxBody>>10)
	}
	return nil
}

// readImages makes data URLs of image files.
func readImages(files []string) ([]string, error) {
	var urls []string
	for _, name := range files {
		b, err := readLimited(name, protocol.MaxBody)
		if err != nil {
			return nil, usagef("image: %v", err)
		}
		kind := http.DetectContentType(b)
		switch kind {
		case "image/png", "image/jpeg", "image/gif", "image/webp":
		default:
			return nil, usagef("image %s: %s is no picture that models take: png, jpeg, gif or webp", name, kind)
		}
		urls = append(urls, "data:"+kind+";base64,"+base64.StdEncoding.EncodeToString(b))
	}
	return urls, nil
}

func readLimited(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(b)) > most:
		return nil, fmt.Errorf("%s: more than %d KiB: scale it down", name, most>>10)
	}
	return b, nil
}
