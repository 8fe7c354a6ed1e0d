package tool

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	_ "image/gif" // first frames
	"image/jpeg"
	_ "image/png"
	"io"
	"strings"

	"rookery/internal/sandbox"
	"rookery/protocol"
)

const opImage = "read_image"

// Bounds of read_image.
const (
	maxImageFile   = 32 << 20
	maxImagePixels = 24 << 20 // of one that is scaled: it is decoded whole
	maxImageSide   = 8000     // providers refuse longer ones
	// maxImage is what fits into a result, in base64 and with some text.
	maxImage = (protocol.MaxBody - 48<<10) / 4 * 3
)

// A picture is an image as a model gets it.
type picture struct {
	Kind          string `json:"kind"` // of the file
	Type          string `json:"type"` // of Data
	Width, Height int    // of the file; 0 when not known
	Size          int    // of the file
	Scaled        string `json:"scaled,omitempty"` // to what
	Data          []byte `json:"data"`
}

// imageTool shows an image of the workspace to the model.
type imageTool struct{}

// Spec implements Tool.
func (imageTool) Spec() protocol.Tool {
	return spec(opImage, "Look at an image file of the workspace: png, jpeg, gif or webp. A large one is scaled down.", `{
		"type": "object",
		"properties": {
			"path": {"type": "string", "minLength": 1, "description": "File, relative to the workspace or absolute in it"}
		},
		"required": ["path"],
		"additionalProperties": false
	}`)
}

// Run implements Tool.
func (imageTool) Run(ctx context.Context, c *Call, w io.Writer) (Report, error) {
	raw, err := c.Session.Do(ctx, opImage, protocol.Encode(opArgs{Args: c.Arguments}))
	if err != nil {
		return Report{}, err
	}
	var p picture
	if err := json.Unmarshal(raw, &p); err != nil {
		return Report{}, fmt.Errorf("read the answer of %s: %w", opImage, err)
	}
	said := fmt.Sprintf("%s image, %d bytes", p.Kind, p.Size)
	if p.Width > 0 {
		said += fmt.Sprintf(", %d × %d", p.Width, p.Height)
	}
	if p.Scaled != "" {
		said += ", scaled to " + p.Scaled
	}
	_, err = io.WriteString(w, said)
	return Report{Images: []string{"data:" + p.Type + ";base64," + base64.StdEncoding.EncodeToString(p.Data)}}, err
}

// imageOp reads an image, in the view, where decoding a hostile one harms nobody.
func imageOp(ctx context.Context, v *sandbox.View, raw json.RawMessage) (any, error) {
	var in opArgs
	var a textArgs
	if err := errors.Join(json.Unmarshal(raw, &in), json.Unmarshal(in.Args, &a)); err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	tree, rel, err := v.Find("", a.Path)
	if err != nil {
		return nil, err
	}
	b, err := readAll(tree, rel, a.Path, maxImageFile)
	if err != nil {
		return nil, err
	}
	kind := imageKind(b)
	if kind == "" {
		return nil, fmt.Errorf("%s is no image that can be shown: png, jpeg, gif or webp", a.Path)
	}
	p, err := fit(ctx, b, kind)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Path, err)
	}
	return p, nil
}

// fit makes a picture that a result can carry.
func fit(ctx context.Context, b []byte, kind string) (picture, error) {
	p := picture{Kind: kind, Type: "image/" + strings.ToLower(kind), Size: len(b), Data: b}
	cfg, _, err := image.DecodeConfig(bytes.NewReader(b))
	if err == nil {
		p.Width, p.Height = cfg.Width, cfg.Height
	}
	switch {
	case len(b) <= maxImage && max(p.Width, p.Height) <= maxImageSide:
		return p, nil
	case err != nil:
		return p, fmt.Errorf("%d bytes are too many, and a %s image can't be scaled here: convert it to a jpeg of at most %d KiB", len(b), kind, maxImage>>10)
	case cfg.Width*cfg.Height > maxImagePixels:
		return p, fmt.Errorf("%d × %d pixels are too many to scale: make it smaller first", cfg.Width, cfg.Height)
	}
	src, _, err := image.Decode(bytes.NewReader(b))
	if err != nil {
		return p, fmt.Errorf("the %s image is broken: %w", kind, err)
	}
	full := opaque(src)
	for side := 2048; side >= 256; side -= side / 4 {
		if err := context.Cause(ctx); err != nil {
			return p, err
		}
		small := shrink(full, side)
		var out bytes.Buffer
		if err := jpeg.Encode(&out, small, &jpeg.Options{Quality: 85}); err != nil {
			return p, fmt.Errorf("encode the scaled image: %w", err)
		}
		if out.Len() <= maxImage {
			p.Type, p.Data = "image/jpeg", out.Bytes()
			p.Scaled = fmt.Sprintf("%d × %d", small.Rect.Dx(), small.Rect.Dy())
			return p, nil
		}
	}
	return p, errors.New("the image can't be made small enough")
}

// opaque puts an image on white.
func opaque(src image.Image) *image.RGBA {
	dst := image.NewRGBA(image.Rect(0, 0, src.Bounds().Dx(), src.Bounds().Dy()))
	draw.Draw(dst, dst.Rect, image.NewUniform(color.White), image.Point{}, draw.Src)
	draw.Draw(dst, dst.Rect, src, src.Bounds().Min, draw.Over)
	return dst
}

// shrink scales an image so that no side is longer than side: each pixel is the mean
// of those it stands for.
func shrink(src *image.RGBA, side int) *image.RGBA {
	w, h := src.Rect.Dx(), src.Rect.Dy()
	longest := max(w, h)
	if longest <= side {
		return src
	}
	dst := image.NewRGBA(image.Rect(0, 0, max(1, w*side/longest), max(1, h*side/longest)))
	for y := range dst.Rect.Dy() {
		y0, y1 := span(y, dst.Rect.Dy(), h)
		for x := range dst.Rect.Dx() {
			x0, x1 := span(x, dst.Rect.Dx(), w)
			copy(dst.Pix[dst.PixOffset(x, y):], mean(src, x0, y0, x1, y1))
		}
	}
	return dst
}

// span is what of n source pixels the i-th of m stands for; never nothing.
func span(i, m, n int) (from, to int) {
	from = i * n / m
	return from, max(from+1, (i+1)*n/m)
}

func mean(src *image.RGBA, x0, y0, x1, y1 int) []byte {
	var sum [4]int
	for y := y0; y < y1; y++ {
		for i, c := range src.Pix[src.PixOffset(x0, y) : src.PixOffset(x1-1, y)+4] {
			sum[i&3] += int(c)
		}
	}
	n := (x1 - x0) * (y1 - y0)
	return []byte{byte(sum[0] / n), byte(sum[1] / n), byte(sum[2] / n), byte(sum[3] / n)} //nolint:gosec // means of bytes
}
